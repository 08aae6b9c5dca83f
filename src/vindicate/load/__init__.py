"""Sessions and a pace → RequestRecords."""
