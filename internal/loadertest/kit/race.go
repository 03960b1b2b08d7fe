//go:build race

package kit

func init() { RaceDetector = true }
