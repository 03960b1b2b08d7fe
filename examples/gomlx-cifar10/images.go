package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt/examples/internal/cifar"
)

// writeImages writes n images that a network can learn to tell apart: they have one of five colours, and
// stripes along or across, under noise.
func writeImages(dir string, n int) error {
	colours := [cifar.Classes / 2][cifar.Channels]int{{200, 60, 60}, {60, 200, 60}, {60, 60, 200}, {180, 180, 40}, {120, 120, 120}}
	rng := rand.New(rand.NewPCG(1, 2))
	var data []byte
	for range n {
		class := rng.IntN(cifar.Classes)
		data = append(data, byte(class))
		for _, level := range colours[class/2] {
			for y := range cifar.Side {
				for x := range cifar.Side {
					along := x
					if class%2 == 1 {
						along = y
					}
					v := level + rng.IntN(61) - 30
					if along/4%2 == 1 {
						v /= 2
					}
					data = append(data, byte(min(max(v, 0), 255)))
				}
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "data_batch_1.bin"), data, 0o644)
}
