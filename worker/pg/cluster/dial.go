package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
)

const networkUnix = "unix"

// hostaddrs maps host names to the numeric addresses given by hostaddr.
type hostaddrs map[string][]string

// names lists the names of the hosts: those in the setting host. If a name is missing or is a socket, the address in
// hostaddr at the same position takes its place.
func (s settings) names() []string {
	names := strings.Split(s["host"], ",")
	for i, address := range strings.Split(s["hostaddr"], ",") {
		if i >= len(names) {
			names = append(names, "")
		}
		if address != "" && (names[i] == "" || isSocketHost(names[i])) {
			names[i] = address
		}
	}
	return names
}

// addresses checks the setting hostaddr, and returns its addresses by host name.
func (s settings) addresses() (hostaddrs, error) {
	if s["hostaddr"] == "" {
		return hostaddrs{}, nil
	}
	list := strings.Split(s["hostaddr"], ",")
	if hosts := strings.Split(s["host"], ","); s["host"] != "" && len(hosts) != len(list) {
		return nil, connError("could not match %d host names to %d hostaddr values", len(hosts), len(list))
	}
	found := hostaddrs{}
	for i, name := range s.names() {
		if list[i] == "" {
			continue
		}
		address, _, _ := strings.Cut(list[i], "%")
		if net.ParseIP(address) == nil {
			return nil, connError("could not parse network address %q of hostaddr", list[i])
		}
		found[name] = append(found[name], list[i])
	}
	return found, nil
}

// lookup returns a function that returns the addresses that hostaddr gives for a name. For names without such
// addresses, the function calls the parameter other.
func (h hostaddrs) lookup(other pgconn.LookupFunc) pgconn.LookupFunc {
	return func(ctx context.Context, host string) ([]string, error) {
		if found, ok := h[host]; ok {
			return found, nil
		}
		return other(ctx, host)
	}
}

// setDial makes connections of config use keepalives, tcp_user_timeout, connect_timeout and requirepeer.
func (s settings) setDial(config *pgx.ConnConfig) {
	dialer := &net.Dialer{Timeout: config.ConnectTimeout, KeepAliveConfig: s.keepAlive()}
	if !dialer.KeepAliveConfig.Enable {
		dialer.KeepAlive = -1
	}
	timeout, _ := s.integer("tcp_user_timeout", 0) // check has refused invalid numbers
	if timeout > 0 {
		dialer.Control = func(network, _ string, raw syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var err error
			if failed := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, timeout)
			}); failed != nil {
				return failed
			}
			return err
		}
	}
	wanted := s["requirepeer"]
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network == networkUnix {
			addr = socketAddress(addr)
		}
		conn, err := rootfs.Dial(ctx, network, addr, dialer.DialContext)
		if err == nil && wanted != "" && network == networkUnix {
			if err = requirePeer(conn, wanted); err != nil {
				_ = conn.Close()
				return nil, err
			}
		}
		return conn, err
	}
}

// keepAlive returns libpq's settings: on by default, with the system's values if none are given.
func (s settings) keepAlive() net.KeepAliveConfig {
	on, _ := s.integer("keepalives", 1) // check has refused invalid numbers
	k := net.KeepAliveConfig{Enable: on != 0, Idle: -1, Interval: -1, Count: -1}
	if seconds, _ := s.integer("keepalives_idle", 0); seconds > 0 {
		k.Idle = time.Duration(seconds) * time.Second
	}
	if seconds, _ := s.integer("keepalives_interval", 0); seconds > 0 {
		k.Interval = time.Duration(seconds) * time.Second
	}
	if count, _ := s.integer("keepalives_count", 0); count > 0 {
		k.Count = count
	}
	return k
}

// integer returns the number in a setting, or the parameter without if the setting is not set.
func (s settings) integer(name string, without int) (int, error) {
	if s[name] == "" {
		return without, nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s[name]), 10, 32)
	if err != nil {
		return 0, connError("invalid integer value %q for connection option %q", s[name], name)
	}
	return int(n), nil
}

// requirePeer returns an error unless the server at a Unix socket runs as the operating system user with this name.
func requirePeer(conn net.Conn, name string) error {
	peer, err := credentials(conn)
	if err != nil {
		return err
	}
	actual := strconv.FormatUint(uint64(peer.Uid), 10)
	if u, err := user.LookupId(actual); err == nil {
		actual = u.Username
	}
	if actual != name {
		return fmt.Errorf("requirepeer specifies %q, but actual peer user name is %q", name, actual)
	}
	return nil
}

// limitTLS sets the TLS versions that s permits in the configuration.
func limitTLS(config *pgx.ConnConfig, s settings) {
	versions := map[string]uint16{
		"TLSv1": tls.VersionTLS10, "TLSv1.1": tls.VersionTLS11, "TLSv1.2": tls.VersionTLS12, "TLSv1.3": tls.VersionTLS13,
	}
	limit := func(c *tls.Config) {
		if c != nil {
			c.MinVersion = versions[s["ssl_min_protocol_version"]]
			c.MaxVersion = versions[s["ssl_max_protocol_version"]]
		}
	}
	limit(config.TLSConfig)
	for _, f := range config.Fallbacks {
		limit(f.TLSConfig)
	}
}
