"""A generative model of private images: training, rendering and samplers. No Flower."""
