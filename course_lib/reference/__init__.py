"""The model answers, one module per notebook. They import torch and NumPy, and nothing of the course."""
