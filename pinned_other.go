//go:build !unix && !windows

package nwt

func mapPages(size int) ([]byte, error) { return heapBytes(size), nil }

func unmapPages([]byte) error { return nil }
