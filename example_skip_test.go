package nwt_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/nwt-go/nwt"
)

// Skip passes over lines without reading them.
func (l *logReader) Skip(_ context.Context, n int) (int, error) {
	n = min(n, len(l.lines))
	l.lines = l.lines[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// The rest of an epoch begins at once, however late in the epoch.
func ExampleSkipper() {
	stream := logs{{"11.5", "12", "12.5"}, {"-3", "-2"}}
	loader, err := nwt.NewLoader(nwt.Streamed(stream), nwt.WithBatchSize(2))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Resume(context.Background(), nwt.State{Epoch: 0, Samples: 2}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(nwt.Values[float64](batch, 0))
	}
	// Output:
	// [12 -2]
	// [12.5]
}
