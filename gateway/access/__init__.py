"""What a principal may do: policy documents, the evaluator, versions. Gives a `Decision`; does no counting."""
