package worker

import (
	"net"
	"os"
)

// notify sends a state such as "READY=1" to the service manager, like
// sd_notify(3). Without a service manager, or if it does not listen, notify
// does nothing, because the worker does not depend on it.
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
