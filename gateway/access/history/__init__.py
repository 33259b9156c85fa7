"""The versions of the policy: who may write the next one, where they are kept, which is in force."""
