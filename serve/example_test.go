package serve_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

const token = "secret" // which only these programs know

// load is the program of a host that loads. It answers until ctx ends.
func load(ctx context.Context, l net.Listener) error {
	ds, err := nwt.FromSlices(nwt.SliceOf("number", []int64{0, 1, 4, 9, 16, 25, 36}))
	if err != nil {
		return err
	}
	server, err := serve.New(ctx, ds, serve.WithToken(token), serve.WithLoader(nwt.WithWorkers(2)))
	if err != nil {
		return err
	}
	return server.Serve(ctx, l)
}

// train is the program of a host that trains.
func train(ctx context.Context, address string) error {
	ds, err := serve.Open(ctx, []string{address}, serve.WithToken(token))
	if err != nil {
		return err
	}
	defer ds.Close()
	number, err := nwt.ColumnOf[int64](ds, "number")
	if err != nil {
		return err
	}
	loader, err := nwt.NewLoader(ds, nwt.WithBatchSize(3), nwt.WithShuffle(42))
	if err != nil {
		return err
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			return err
		}
		fmt.Println(number.Of(batch))
	}
	return nil
}

// One host loads, another trains. The two programs are here functions.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	listener, err := net.Listen("tcp", "127.0.0.1:0") // on a host of its own, ":8815"
	if err != nil {
		log.Fatal(err)
	}
	loading := make(chan error)
	go func() { loading <- load(ctx, listener) }()
	if err := train(ctx, listener.Addr().String()); err != nil {
		log.Fatal(err)
	}
	stop()
	if err := <-loading; err != nil {
		log.Fatal(err)
	}
	// Output:
	// [25 1 9]
	// [16 4 36]
	// [0]
}
