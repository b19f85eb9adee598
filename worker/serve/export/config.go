package export

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"github.com/rs/zerolog"
)

// Types of receivers.
const (
	Pyroscope = "pyroscope"
	OTLP      = "otlp"
)

// Limits of the options.
const (
	DefaultInterval = time.Minute
	MinInterval     = 5 * time.Second
	MaxInterval     = 15 * time.Minute
	DefaultSpool    = 64 << 20
)

// Config configures an Exporter. At least one URL must be set.
type Config struct {
	// Pyroscope and OTLP are the URLs of receivers; empty: none. A URL of an OTLP receiver without a path gets the usual
	// path.
	Pyroscope, OTLP string
	// HeaderFile is a file with headers of each request, "Name: value" a line; empty: none. It is read again after a
	// change.
	HeaderFile string
	// Headers are the content of HeaderFile as this process read it while it was root; nil: it did not. While the process
	// has no permission to read the file, the last content is used.
	Headers http.Header
	// Interval is the duration of each profile; 0: DefaultInterval.
	Interval time.Duration
	// Mode is the mode of the profiles: cpu, offcpu or wall.
	Mode string
	// Cluster is the value of the labels cluster and service_name.
	Cluster string
	// Host is the name of this host.
	Host string
	// Version is the program's version.
	Version string
	// SpoolDir is the folder for profiles that wait; empty: they wait in memory.
	SpoolDir string
	// SpoolBytes bounds the profiles that wait; 0: DefaultSpool.
	SpoolBytes int64
	// Collect makes a profile of that duration. A profile may have no samples.
	Collect func(ctx context.Context, d time.Duration) (*profile.Profile, error)
	// Log gets failures, once for each different error of the same kind, and recoveries. The zero value discards them.
	Log zerolog.Logger

	// timing is for tests; the zero value is the default.
	timing timing
}

// timing is how long things take.
type timing struct {
	request  time.Duration // until a receiver must have answered; 30 s
	minPause time.Duration // after the first failure; 1 s
	maxPause time.Duration // after many; 5 min
	maxAge   time.Duration // of a profile; 1 h
}

func (t timing) withDefaults() timing {
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&t.request, 30 * time.Second}, {&t.minPause, time.Second}, {&t.maxPause, 5 * time.Minute}, {&t.maxAge, time.Hour}} {
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	return t
}

// ErrOptions means that options have no meaning.
var ErrOptions = errors.New("invalid export options")

// Check returns an error that wraps ErrOptions. It reads no file.
func (c *Config) Check() error {
	for option, text := range map[string]string{"--export-pyroscope": c.Pyroscope, "--export-otlp": c.OTLP} {
		if text == "" {
			continue
		}
		if _, err := parseURL(text); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrOptions, option, err)
		}
	}
	if c.Interval != 0 && (c.Interval < MinInterval || c.Interval > MaxInterval) {
		return fmt.Errorf("%w: --export-interval must be from %s to %s", ErrOptions, MinInterval, MaxInterval)
	}
	return nil
}

// On reports whether there is a receiver.
func (c *Config) On() bool { return c.Pyroscope != "" || c.OTLP != "" }

// InClearText reports whether headers cross a network without TLS.
func (c *Config) InClearText() bool {
	for _, text := range []string{c.Pyroscope, c.OTLP} {
		u, err := parseURL(text)
		if err == nil && u.Scheme == "http" && !loopback(u.Hostname()) && (c.HeaderFile != "" || u.User != nil) {
			return true
		}
	}
	return false
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

func parseURL(text string) (*url.URL, error) {
	if !strings.HasPrefix(text, "http://") && !strings.HasPrefix(text, "https://") {
		return nil, errors.New("the URL must start with http:// or https://")
	}
	u, err := url.Parse(text)
	if err != nil {
		// The error repeats the URL, which may hold a password.
		return nil, errors.New("the URL is not valid")
	}
	switch {
	case u.Hostname() == "":
		return nil, errors.New("the URL has no host")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("the URL must have no query and no fragment")
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, errors.New("the port of the URL is not valid")
		}
	}
	return u, nil
}
