"""The work queue of client-go's util/workqueue, fair lanes in it, and the controller that drains it."""
