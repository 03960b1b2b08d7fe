package folder_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/folder"
)

// Text files, one folder per class. A batch is as long as its longest text.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "texts")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"ham/1.txt": "see you at noon", "ham/2.txt": "thanks", "spam/1.txt": "you have won"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			log.Fatal(err)
		}
	}

	ctx := context.Background()
	const longest = 1000 // bytes; what is longer is cut
	var schema nwt.Schema
	text := nwt.AddRagged[uint8](&schema, "text", 1, longest)
	files, err := folder.Open(ctx, dir, []string{".txt"}, schema.Fields(), func(_ context.Context, path string, dst *nwt.Sample) error {
		data, err := os.ReadFile(path)
		text.Set(dst, data[:min(len(data), longest)]...)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	lengths, err := files.Lengths(ctx, func(_ context.Context, path string) (int, error) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		return int(min(info.Size(), longest)), nil
	})
	if err != nil {
		log.Fatal(err)
	}
	label, err := nwt.ColumnOf[int64](files, "label")
	if err != nil {
		log.Fatal(err)
	}
	sized := nwt.Sized(files, func(i int, sizes []int) { sizes[0] = lengths[i] })

	loader, err := nwt.NewLoader(sized, nwt.WithBatchSize(3))
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(files.Classes(), label.Of(batch), text.Shape(batch), text.Lens(batch, 0))
		fmt.Printf("%s\n", text.Of(batch)[:text.Lens(batch, 0)[0]])
	}
	// Output:
	// [ham spam] [0 0 1] [3 15] [15 6 12]
	// see you at noon
}
