package retry

import "golang.org/x/sys/windows"

// faults are errors of networks and network drives.
var faults = []error{
	windows.WSAECONNRESET, windows.WSAECONNREFUSED, windows.WSAECONNABORTED, windows.WSAETIMEDOUT, windows.WSAESHUTDOWN,
	windows.WSAEHOSTUNREACH, windows.WSAEHOSTDOWN, windows.WSAENETUNREACH, windows.WSAENETDOWN, windows.WSAENETRESET, windows.WSAENOBUFS,
	windows.ERROR_NETNAME_DELETED, windows.ERROR_BAD_NETPATH, windows.ERROR_UNEXP_NET_ERR, windows.ERROR_NETWORK_BUSY, windows.ERROR_SEM_TIMEOUT,
}
