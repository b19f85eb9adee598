// Program receivers is a receiver of profiles for tests. It is a separate module, because its dependencies are large.
//
//	receivers otel --config FILE     an OpenTelemetry Collector with the OTLP receiver and the debug exporter
//	receivers pyroscope ADDRESS      a server made from Pyroscope's published API, which prints each series
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/pprof/profile"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 2 && arguments[0] == "pyroscope":
		return pyroscope(arguments[1])
	case len(arguments) > 1 && arguments[0] == "otel":
		return collector(arguments[1:])
	}
	return fmt.Errorf("usage: receivers otel --config FILE, or receivers pyroscope ADDRESS")
}

// collector runs an OpenTelemetry Collector.
func collector(arguments []string) error {
	factories := func() (otelcol.Factories, error) {
		r, e := otlpreceiver.NewFactory(), debugexporter.NewFactory()
		return otelcol.Factories{
			Receivers: map[component.Type]receiver.Factory{r.Type(): r},
			Exporters: map[component.Type]exporter.Factory{e.Type(): e},
			Telemetry: otelconftelemetry.NewFactory(),
		}, nil
	}
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "receivers", Version: "test"}, Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			DefaultScheme: "file", ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		}},
	})
	command.SetArgs(arguments)
	return command.Execute()
}

// pusher prints the profiles that it gets.
type pusher struct{}

// Push prints a line for each series.
func (pusher) Push(
	_ context.Context, request *connect.Request[pushv1.PushRequest],
) (*connect.Response[pushv1.PushResponse], error) {
	for _, series := range request.Msg.GetSeries() {
		var line strings.Builder
		for _, l := range series.GetLabels() {
			fmt.Fprintf(&line, "%s=%q ", l.GetName(), l.GetValue())
		}
		for _, sample := range series.GetSamples() {
			p, err := profile.ParseData(sample.GetRawProfile())
			if err != nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, err)
			}
			fmt.Fprintf(&line, "samples=%d functions=%d types=%d ", len(p.Sample), len(p.Function), len(p.SampleType))
			for _, f := range p.Function {
				fmt.Fprintf(&line, "%s ", f.Name)
			}
		}
		fmt.Printf("series %stenant=%s\n", line.String(), request.Header().Get("X-Scope-OrgID"))
	}
	return connect.NewResponse(&pushv1.PushResponse{}), nil
}

func pyroscope(address string) error {
	mux := http.NewServeMux()
	mux.Handle(pushv1connect.NewPusherServiceHandler(pusher{}))
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}
