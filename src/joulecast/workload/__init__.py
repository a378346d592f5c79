"""What is computed: op tables of training steps, by tracing or packaged; knows no GPU."""
