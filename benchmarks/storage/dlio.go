package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// dlio returns the mean AU that DLIO has with n accelerators, which are MPI processes.
func (s shape) dlio(n, workers, steps int) (float64, error) {
	out, err := os.MkdirTemp("", "dlio")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(out)
	args := []string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-np", strconv.Itoa(n),
		filepath.Join("peers", ".venv", "bin", "dlio_benchmark"), "workload=default", "hydra.run.dir=" + out}
	for _, setting := range append([]string{
		"workflow.evaluation=False", "dataset.data_folder=" + filepath.Join(s.folder, "dlio"), "dataset.num_subfolders_train=0",
		"dataset.num_subfolders_eval=0", "dataset.num_files_eval=0", fmt.Sprint("dataset.num_samples_per_file=", s.ofFile),
		fmt.Sprint("dataset.num_files_train=", n*(1+steps*s.batch/s.ofFile)),
		fmt.Sprint("reader.batch_size=", s.batch), fmt.Sprint("reader.read_threads=", workers), "reader.sample_shuffle=seed",
		"train.epochs=1", fmt.Sprint("train.total_training_steps=", steps), fmt.Sprint("train.computation_time=", s.step.Seconds()),
		"output.folder=" + out}, s.reader...) {
		args = append(args, "++workload."+setting)
	}
	mpi := exec.Command("mpirun", args...)
	mpi.Env = append(os.Environ(), "PYTHONPATH=storage", "TF_CPP_MIN_LOG_LEVEL=3")
	if text, err := mpi.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, text)
	}
	var summary struct {
		Metric struct {
			AU float64 `json:"train_au_mean_percentage"`
		}
	}
	text, err := os.ReadFile(filepath.Join(out, "summary.json"))
	if err == nil {
		err = json.Unmarshal(text, &summary)
	}
	return summary.Metric.AU / 100, err
}
