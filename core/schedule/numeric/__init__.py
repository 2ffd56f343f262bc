"""What is computed, chosen for a target and a precision: passes from graph to graph that change how numbers are
represented, rounded or summed."""
