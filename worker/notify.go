package worker

import (
	"net"
	"os"
)

// notify tells the service manager a state such as "READY=1", as sd_notify(3)
// does. Without a service manager, or if it does not listen, nothing happens:
// the worker's job does not depend on it.
func notify(state string) {
	addr := os.Getenv("NOTIFY_SOCKET")
	if addr == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte(state))
}
