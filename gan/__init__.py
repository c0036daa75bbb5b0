"""A generative model of private images: training, rendering, and what it gives away. No Flower."""
