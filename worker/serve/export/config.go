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

// Values of Figures.Type: the types of receivers.
const (
	Pyroscope = "pyroscope"
	OTLP      = "otlp"
)

// Defaults and limits of the options. DefaultSpool is a number of bytes.
const (
	DefaultInterval = time.Minute
	MinInterval     = 5 * time.Second
	MaxInterval     = 15 * time.Minute
	DefaultSpool    = 64 << 20
)

// Config configures an Exporter. At least one URL must be set.
type Config struct {
	// Pyroscope and OTLP are the URLs of receivers; empty: no receiver of this type. If the URL of an OTLP receiver has
	// no path, otlpPath is added to it.
	Pyroscope, OTLP string
	// HeaderFile is a file with headers to send with each request, one "Name: value" in each line; empty: none. The file is read
	// again for each request.
	HeaderFile string
	// Headers are the content of HeaderFile, if the worker has read the file as root; nil: the worker has not read it. While the
	// worker has no permission to read the file, it sends the headers of its last successful read.
	Headers http.Header
	// Interval is the duration of each profile; 0: DefaultInterval.
	Interval time.Duration
	// Mode is the mode of the profiles: cpu, offcpu or wall.
	Mode string
	// Cluster is the value of the labels cluster and service_name.
	Cluster string
	// Host is the name of this host; empty: profiles have no label for the host.
	Host string
	// Version is the version of pg_stat_backtrace.
	Version string
	// SpoolDir is the folder for profiles that were not sent yet; empty: they are kept in memory.
	SpoolDir string
	// SpoolBytes is the largest size of all profiles that were not sent yet, in bytes; 0: DefaultSpool.
	SpoolBytes int64
	// Collect makes a profile of the duration d. A profile may have no samples.
	Collect func(ctx context.Context, d time.Duration) (*profile.Profile, error)
	// Log gets failures, and the first success after failures. A failure is left out if its error is equal to the last error of
	// its kind. The zero value discards all lines.
	Log zerolog.Logger

	// timing is changed only by tests; the zero value means the defaults.
	timing timing
}

// timing has durations that tests shorten; 0: the default, which the comment at the field says.
type timing struct {
	request  time.Duration // timeout of a request to a receiver; 30 s
	minPause time.Duration // before the attempt after the first failure; 1 s
	maxPause time.Duration // the longest pause, after many failures; 5 min
	maxAge   time.Duration // an older profile is dropped; 1 h
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

// ErrOptions means that an option of the export has a value that is not allowed.
var ErrOptions = errors.New("invalid export options")

// Check returns an error that wraps ErrOptions if an option is wrong; otherwise nil. It does not read HeaderFile.
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

// On reports whether a receiver is configured.
func (c *Config) On() bool { return c.Pyroscope != "" || c.OTLP != "" }

// InClearText reports whether headers or a password in a URL are sent to another host without TLS.
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
		// err is not returned, because it repeats the URL, which may contain a password.
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
