//go:build !unix && !windows

package retry

var faults []error
