package pgcluster

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

// hostaddrs are the numeric addresses that hostaddr gives to host names.
type hostaddrs map[string][]string

// names lists the hosts, each named by host, or by hostaddr where host has no name for it.
func (s settings) names() []string {
	names := strings.Split(s["host"], ",")
	for i, address := range strings.Split(s["hostaddr"], ",") {
		if i >= len(names) {
			names = append(names, "")
		}
		if address != "" && (names[i] == "" || strings.HasPrefix(names[i], "/") || names[i][0] == '@') {
			names[i] = address
		}
	}
	return names
}

// addresses checks hostaddr.
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

// lookup answers for the names that hostaddr has an address for, and asks other for the rest.
func (h hostaddrs) lookup(other pgconn.LookupFunc) pgconn.LookupFunc {
	return func(ctx context.Context, host string) ([]string, error) {
		if found, ok := h[host]; ok {
			return found, nil
		}
		return other(ctx, host)
	}
}

// setDial makes the connections of config honour keepalives, tcp_user_timeout, connect_timeout and requirepeer.
func (s settings) setDial(config *pgx.ConnConfig) {
	dialer := &net.Dialer{Timeout: config.ConnectTimeout, KeepAliveConfig: s.keepAlive()}
	if !dialer.KeepAliveConfig.Enable {
		dialer.KeepAlive = -1
	}
	timeout, _ := s.integer("tcp_user_timeout", 0) // check has refused what is no number
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

// keepAlive is libpq's: on unless it is turned off, with the system's figures where none is given.
func (s settings) keepAlive() net.KeepAliveConfig {
	on, _ := s.integer("keepalives", 1) // check has refused what is no number
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

// integer is the number that a setting has, or what it is without it.
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

// requirePeer makes sure that the server at a socket runs as the user.
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

// limitTLS sets the protocol versions that may be used.
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
