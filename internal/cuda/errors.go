package cuda

import (
	"errors"
	"fmt"
)

// ErrNoDevice covers every reason why there is no GPU to open: no driver, no GPU, a number that no GPU
// has, or a binary that can't load the driver.
var ErrNoDevice = errors.New("no CUDA device")

// Error is a call of the driver that failed. errors.Is finds its Result.
type Error struct {
	Call   string // the driver's function, such as "cuMemAlloc_v2"
	Result Result
	Asked  string // what the call asked for, if that helps
}

func (e *Error) Error() string {
	if e.Asked == "" {
		return fmt.Sprintf("%s: %v", e.Call, e.Result)
	}
	return fmt.Sprintf("%s: %v: %s", e.Call, e.Result, e.Asked)
}

func (e *Error) Unwrap() error { return e.Result }

func check(call string, r Result) error {
	if r == Success {
		return nil
	}
	return &Error{Call: call, Result: r}
}

// Result is what a call of the driver returns, a CUresult.
type Result int32

// The results that this package acts on.
const (
	Success      Result = 0
	InvalidValue Result = 1
	OutOfMemory  Result = 2
	StubLibrary  Result = 34
	NoDevice     Result = 100
)

// Error returns the result's name in cuda.h, with its number.
func (r Result) Error() string {
	name, ok := names[r]
	if !ok {
		name = "CUresult"
	}
	return fmt.Sprintf("%s (%d)", name, int32(r))
}

// names are the names in CUresult of the results that these calls return: their own, and those of earlier
// errors in a kernel of the program.
var names = map[Result]string{
	0:   "CUDA_SUCCESS",
	1:   "CUDA_ERROR_INVALID_VALUE",
	2:   "CUDA_ERROR_OUT_OF_MEMORY",
	3:   "CUDA_ERROR_NOT_INITIALIZED",
	4:   "CUDA_ERROR_DEINITIALIZED",
	34:  "CUDA_ERROR_STUB_LIBRARY",
	46:  "CUDA_ERROR_DEVICE_UNAVAILABLE",
	100: "CUDA_ERROR_NO_DEVICE",
	101: "CUDA_ERROR_INVALID_DEVICE",
	102: "CUDA_ERROR_DEVICE_NOT_LICENSED",
	201: "CUDA_ERROR_INVALID_CONTEXT",
	202: "CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
	214: "CUDA_ERROR_ECC_UNCORRECTABLE",
	220: "CUDA_ERROR_NVLINK_UNCORRECTABLE",
	304: "CUDA_ERROR_OPERATING_SYSTEM",
	400: "CUDA_ERROR_INVALID_HANDLE",
	401: "CUDA_ERROR_ILLEGAL_STATE",
	600: "CUDA_ERROR_NOT_READY",
	700: "CUDA_ERROR_ILLEGAL_ADDRESS",
	701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
	702: "CUDA_ERROR_LAUNCH_TIMEOUT",
	709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	710: "CUDA_ERROR_ASSERT",
	714: "CUDA_ERROR_HARDWARE_STACK_ERROR",
	715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
	716: "CUDA_ERROR_MISALIGNED_ADDRESS",
	717: "CUDA_ERROR_INVALID_ADDRESS_SPACE",
	718: "CUDA_ERROR_INVALID_PC",
	719: "CUDA_ERROR_LAUNCH_FAILED",
	800: "CUDA_ERROR_NOT_PERMITTED",
	801: "CUDA_ERROR_NOT_SUPPORTED",
	802: "CUDA_ERROR_SYSTEM_NOT_READY",
	803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
	805: "CUDA_ERROR_MPS_CONNECTION_FAILED",
	806: "CUDA_ERROR_MPS_RPC_FAILURE",
	807: "CUDA_ERROR_MPS_SERVER_NOT_READY",
	808: "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
	809: "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
	909: "CUDA_ERROR_TIMEOUT",
	911: "CUDA_ERROR_EXTERNAL_DEVICE",
	999: "CUDA_ERROR_UNKNOWN",
}
