"""Made-up programs of mixed data types, Python numbers, special values and layouts."""
