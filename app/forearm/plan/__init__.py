"""`forearm plan`: the memory and speed of a model on a machine, predicted before anything is downloaded."""
