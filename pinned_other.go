//go:build !unix && !windows

package nwt

import "errors"

func mapPages(size int) ([]byte, error) { return heapBytes(size), nil }

func unmapPages([]byte) error { return nil }

func lockPages([]byte) error { return errors.ErrUnsupported }

func lockLimit() string { return "none is possible on this system" }
