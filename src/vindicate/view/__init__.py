"""Records → terminal and HTML; decides nothing."""
