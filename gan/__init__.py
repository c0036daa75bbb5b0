"""A generative model of private images: trains, renders, measures what it gives away. No Flower."""
