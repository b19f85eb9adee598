// Command fleetsim serves the metrics of many servers that do not exist, each on its own port of the loopback
// interface. It copies the answer of a real worker, and changes the numbers at each scrape:
//
//	curl -s http://127.0.0.1:9188/metrics >metrics.txt
//	fleetsim -servers 500 -port 20000 -stuck 1 metrics.txt
//
// With -stuck N the first N servers accept connections and never answer. It runs until it gets a signal, and prints
// one target a line.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	servers := flag.Int("servers", 500, "number of servers")
	port := flag.Int("port", 20000, "port of the first server")
	stuck := flag.Int("stuck", 0, "number of servers that never answer")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: fleetsim [-servers N] [-port N] [-stuck N] METRICS")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *servers, *port, *stuck, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "fleetsim:", err)
		os.Exit(1) //nolint:gocritic // stop only frees the signal
	}
}

func run(ctx context.Context, servers, port, stuck int, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := parse(string(text))
	for i := range servers {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i))
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return err
		}
		server := &http.Server{Handler: handler(lines, i < stuck), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
		_, _ = fmt.Fprintln(os.Stdout, address)
	}
	<-ctx.Done()
	return nil
}

// line is a line of the exposition format: a comment, or a sample whose value may change.
type line struct {
	text            string // the comment, or the name with labels
	value           float64
	sample, counter bool
}

var sampleLine = regexp.MustCompile(`^([a-zA-Z_:][^ {]*(?:\{.*\})?) ([0-9.eE+-]+)$`)

func parse(text string) (lines []line) {
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		m := sampleLine.FindStringSubmatch(l)
		var value float64
		if m != nil {
			value, _ = strconv.ParseFloat(m[2], 64)
			name, _, _ := strings.Cut(m[1], "{")
			lines = append(lines, line{text: m[1], value: value, sample: true, counter: strings.HasSuffix(name, "_total") ||
				strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_count") || strings.HasSuffix(name, "_sum")})
			continue
		}
		lines = append(lines, line{text: l})
	}
	return lines
}

// handler answers with the lines. Counters grow by a factor that depends on the time; gauges vary a little.
func handler(lines []line, stuck bool) http.Handler {
	began := time.Now()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if stuck {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		grown := 1 + time.Since(began).Seconds()/10
		var b strings.Builder
		for _, l := range lines {
			switch {
			case !l.sample:
				b.WriteString(l.text)
			case l.counter:
				fmt.Fprintf(&b, "%s %g", l.text, l.value*grown)
			case l.value > 1:
				fmt.Fprintf(&b, "%s %g", l.text, l.value+float64(rand.IntN(3)))
			default:
				fmt.Fprintf(&b, "%s %g", l.text, l.value)
			}
			b.WriteByte('\n')
		}
		_, _ = w.Write([]byte(b.String()))
	})
}
