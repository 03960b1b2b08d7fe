//go:build race

package nwt_test

func init() { raceDetector = true }
