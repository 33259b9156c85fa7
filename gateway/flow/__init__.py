"""The request as data: values that only grow, the ports they pass through, the pipeline. Standard library only."""
