package main

func (r *run) lie() error { return nil }
