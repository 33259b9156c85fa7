"""What a text holds: findings and the action they deserve. Gives an `Inspection`."""
