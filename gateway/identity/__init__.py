"""Authentication: tokens, key sets, API keys, revocations. Gives a `Principal`; decides no permission."""
