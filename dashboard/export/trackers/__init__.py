"""A run for other trackers: TensorBoard, Weights & Biases, MLflow. Each package is imported when it is used.

`tracked_run.py` reads the run, one module each writes it. Nothing here is ever imported where models train.
"""
