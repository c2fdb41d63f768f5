"""Invokers run reward functions: in local processes, behind a URL or on AWS Lambda."""
