package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheLossFalls(t *testing.T) {
	var stdout strings.Builder
	require.NoError(t, run(t.Context(), 5000, 3, 200*time.Millisecond, &stdout))
	table, epochs, found := strings.Cut(stdout.String(), "\nepoch 1:")
	require.True(t, found)
	require.Contains(t, table, "if training never waited", "measured with the training step")
	var number int
	var loss, accuracy [3]float64
	for i, line := range strings.Split(strings.TrimSpace("epoch 1:"+epochs), "\n") {
		_, err := fmt.Sscanf(line, "epoch %d: loss %f, accuracy %f %%", &number, &loss[i], &accuracy[i])
		require.NoError(t, err, line)
		require.Equal(t, i+1, number)
	}
	require.Less(t, loss[2], loss[0]/2)
	require.Greater(t, accuracy[2], 80.0)
}
