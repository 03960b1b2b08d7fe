package split_test

import (
	"context"
	"fmt"
	"log"
	"path/filepath"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/split"
	"github.com/nwt-go/nwt/vision"
)

// Photographs, half of which validate, without random crops. The same seed divides both
// datasets alike, since they are of the same files.
func ExampleStratified() {
	random, err := vision.New([]vision.Transform{vision.RandomResizedCrop{Size: vision.Square(32)}, vision.RandomHorizontalFlip{P: 0.5}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	fixed, err := vision.New([]vision.Transform{vision.Resize{Shorter: 36}, vision.CenterCrop{Size: vision.Square(32)}, vision.ImageNetNormalize})
	if err != nil {
		log.Fatal(err)
	}
	photos, err := vision.OpenFolder(context.Background(), filepath.Join("..", "vision", "testdata", "classes"), random)
	if err != nil {
		log.Fatal(err)
	}
	same, err := photos.With(fixed)
	if err != nil {
		log.Fatal(err)
	}
	training, err := split.Stratified(photos, 42, photos.Class, 0.5, 0.5)
	if err != nil {
		log.Fatal(err)
	}
	validation, err := split.Stratified(same, 42, same.Class, 0.5, 0.5)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(training[0].Len(), "train,", validation[1].Len(), "validate")
	// Output: 2 train, 2 validate
}

// Five folds: each sample validates once.
func ExampleFold() {
	x := make([]float32, 100)
	y := make([]int64, 100)
	for i := range y {
		y[i] = int64(i % 20 / 19) // one in twenty is of class 1
	}
	table, err := nwt.FromSlices(nwt.SliceOf("x", x), nwt.SliceOf("y", y))
	if err != nil {
		log.Fatal(err)
	}
	for i := range 5 {
		training, validation, err := split.Fold(table, 42, 5, i, func(index int) int { return int(y[index]) })
		if err != nil {
			log.Fatal(err)
		}
		rare := 0
		for k := range validation.Len() {
			rare += int(y[validation.(nwt.SubsetDataset).Index(k)])
		}
		fmt.Println(training.Len(), "train,", validation.Len(), "validate, of class 1:", rare)
	}
	// Output:
	// 80 train, 20 validate, of class 1: 1
	// 80 train, 20 validate, of class 1: 1
	// 80 train, 20 validate, of class 1: 1
	// 80 train, 20 validate, of class 1: 1
	// 80 train, 20 validate, of class 1: 1
}
