"""Jobs of one worker: their states and what to do next (``state``, no IO), and the tasks that do it (``runner``)."""
