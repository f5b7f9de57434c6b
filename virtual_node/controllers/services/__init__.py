"""Services and EndpointSlices that follow pods, and the Service variables of containers."""
