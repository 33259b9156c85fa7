"""Routes of the policy: its versions and proposals, dry runs, role bindings, explanations."""
