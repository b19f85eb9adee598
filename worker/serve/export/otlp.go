package export

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"google.golang.org/protobuf/encoding/protowire"
)

// otlpPath is the path for profiles in OTLP. It has "development" in it because OpenTelemetry's format of profiles is not stable.
const otlpPath = "/v1development/profiles"

// otlpLabels are the labels of samples that a request keeps, as attributes of the samples.
var otlpLabels = []string{"database", "wait_event_type", "wait_event", "off_cpu"}

// Numbers of fields of opentelemetry-proto 1.10: collector/profiles/v1development, profiles/v1development, resource/v1,
// common/v1.
const (
	requestResources, requestDictionary = 1, 2

	resourceResource, resourceScopes = 1, 2
	resourceAttributes               = 1
	scopeScope, scopeProfiles        = 1, 2
	scopeName, scopeVersion          = 1, 2

	dictionaryMappings, dictionaryLocations, dictionaryFunctions, dictionaryLinks = 1, 2, 3, 4
	dictionaryStrings, dictionaryAttributes, dictionaryStacks                     = 5, 6, 7

	profileType, profileSamples, profileTime, profileDuration = 1, 2, 3, 4
	profilePeriodType, profilePeriod, profileID               = 5, 6, 7

	typeType, typeUnit = 1, 2

	sampleStack, sampleAttributes, sampleValues = 1, 2, 4

	stackLocations = 1

	locationMapping, locationAddress, locationLines = 1, 2, 3
	lineFunction, lineLine                          = 1, 2
	functionName, functionSystemName, functionFile  = 1, 2, 3

	mappingStart, mappingLimit, mappingOffset, mappingFile, mappingAttributes = 1, 2, 3, 4, 5

	attributeKey, attributeValue = 1, 2 // KeyValue, and KeyValueAndUnit with an index as key
	anyString                    = 1
)

// otlpRequest encodes an ExportProfilesServiceRequest. It has one resource for each type of backend, and in it one
// profile for each type of sample.
func otlpRequest(c *Config, all []series) ([]byte, error) {
	d := newDictionary()
	var request []byte
	for _, s := range all {
		var resource []byte
		for _, a := range [][2]string{
			{"service.name", c.Cluster}, {"host.name", c.Host}, {labelCluster, c.Cluster}, {labelBackend, s.backendType},
			{labelMode, c.Mode},
		} {
			if a[1] != "" {
				resource = appendBytes(resource, resourceAttributes, keyValue(a[0], a[1]))
			}
		}
		var scope []byte
		scope = appendString(scope, scopeName, "pg_stat_backtrace")
		scope = appendString(scope, scopeVersion, c.Version)
		scopes := appendBytes(nil, scopeScope, scope)
		for i := range s.profile.SampleType {
			if has(s.profile, i) {
				scopes = appendBytes(scopes, scopeProfiles, d.profile(s.profile, i))
			}
		}
		message := appendBytes(nil, resourceResource, resource)
		message = appendBytes(message, resourceScopes, scopes)
		request = appendBytes(request, requestResources, message)
	}
	return appendBytes(request, requestDictionary, d.message()), nil
}

func keyValue(key, value string) []byte {
	return appendBytes(appendString(nil, attributeKey, key), attributeValue, stringValue(value))
}

// stringValue encodes an AnyValue with a string. An empty string is encoded too: without the field, the value has no
// type.
func stringValue(value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, anyString, protowire.BytesType), value)
}

// dictionary holds the tables that all profiles of a request use. The first element of each table is empty, so that
// index 0 means none.
type dictionary struct {
	strings, attributes, stacks, mappings, locations, functions table
}

// table has different encoded messages, and gives each an index.
type table struct {
	index map[string]int
	rows  [][]byte
}

func newDictionary() *dictionary {
	d := &dictionary{}
	for _, t := range []*table{&d.strings, &d.attributes, &d.stacks, &d.mappings, &d.locations, &d.functions} {
		t.index = make(map[string]int)
		t.at(nil)
	}
	return d
}

// at returns the index of a row, and adds the row if the table lacks it.
func (t *table) at(row []byte) int {
	if i, ok := t.index[string(row)]; ok {
		return i
	}
	i := len(t.rows)
	t.index[string(row)] = i
	t.rows = append(t.rows, row)
	return i
}

func (d *dictionary) string(text string) int {
	return d.strings.at([]byte(strings.ToValidUTF8(text, "\uFFFD")))
}

func (d *dictionary) attribute(key, value string) int {
	row := appendNumber(nil, attributeKey, d.string(key))
	return d.attributes.at(appendBytes(row, attributeValue, stringValue(strings.ToValidUTF8(value, "\uFFFD"))))
}

// message encodes the dictionary.
func (d *dictionary) message() (m []byte) {
	for _, t := range []struct {
		field protowire.Number
		rows  [][]byte
	}{
		{dictionaryMappings, d.mappings.rows}, {dictionaryLocations, d.locations.rows},
		{dictionaryFunctions, d.functions.rows}, {dictionaryLinks, [][]byte{nil}}, {dictionaryStrings, d.strings.rows},
		{dictionaryAttributes, d.attributes.rows}, {dictionaryStacks, d.stacks.rows},
	} {
		for _, row := range t.rows {
			m = appendBytes(m, t.field, row)
		}
	}
	return m
}

// sampleTypes translates the types of samples whose name in OpenTelemetry differs from pprof's.
var sampleTypes = map[string]string{"offcpu": "off_cpu"}

func (d *dictionary) valueType(t *profile.ValueType) []byte {
	name := t.Type
	if other, ok := sampleTypes[name]; ok {
		name = other
	}
	return appendNumber(appendNumber(nil, typeType, d.string(name)), typeUnit, d.string(t.Unit))
}

// has reports whether a sample of the profile has a value, except 0, of the type of sample with index kind.
func has(p *profile.Profile, kind int) bool {
	return slices.ContainsFunc(p.Sample, func(s *profile.Sample) bool { return s.Value[kind] != 0 })
}

// profile encodes the values of the type of sample with index kind. It leaves out samples whose value of this type is
// 0.
func (d *dictionary) profile(p *profile.Profile, kind int) (m []byte) {
	m = appendBytes(m, profileType, d.valueType(p.SampleType[kind]))
	for _, s := range p.Sample {
		if s.Value[kind] != 0 {
			m = appendBytes(m, profileSamples, d.sample(s, s.Value[kind]))
		}
	}
	start := p.TimeNanos
	if start <= 0 {
		start = time.Now().UnixNano() - p.DurationNanos
	}
	m = protowire.AppendFixed64(protowire.AppendTag(m, profileTime, protowire.Fixed64Type), uint64(start))
	m = appendNumber(m, profileDuration, p.DurationNanos)
	if p.PeriodType != nil && p.Period > 0 {
		m = appendBytes(m, profilePeriodType, d.valueType(p.PeriodType))
		m = appendNumber(m, profilePeriod, p.Period)
	}
	return appendBytes(m, profileID, random16())
}

func (d *dictionary) sample(s *profile.Sample, value int64) (m []byte) {
	var locations []byte
	for _, l := range s.Location {
		locations = protowire.AppendVarint(locations, uint64(d.location(l)))
	}
	var stack []byte
	if len(locations) > 0 {
		stack = appendBytes(nil, stackLocations, locations)
	}
	m = appendNumber(m, sampleStack, d.stacks.at(stack))
	var attributes []byte
	for _, name := range otlpLabels {
		for _, text := range s.Label[name] {
			attributes = protowire.AppendVarint(attributes, uint64(d.attribute(name, text)))
		}
	}
	if len(attributes) > 0 {
		m = appendBytes(m, sampleAttributes, attributes)
	}
	return appendBytes(m, sampleValues, protowire.AppendVarint(nil, uint64(value)))
}

func (d *dictionary) location(l *profile.Location) int {
	var m []byte
	if l.Mapping != nil {
		m = appendNumber(m, locationMapping, d.mapping(l.Mapping))
	}
	m = appendNumber(m, locationAddress, l.Address)
	for _, line := range l.Line {
		var row []byte
		if f := line.Function; f != nil {
			function := appendNumber(nil, functionName, d.string(f.Name))
			function = appendNumber(function, functionSystemName, d.string(f.SystemName))
			function = appendNumber(function, functionFile, d.string(f.Filename))
			row = appendNumber(row, lineFunction, d.functions.at(function))
		}
		m = appendBytes(m, locationLines, appendNumber(row, lineLine, line.Line))
	}
	return d.locations.at(m)
}

func (d *dictionary) mapping(m *profile.Mapping) int {
	row := appendNumber(nil, mappingStart, m.Start)
	row = appendNumber(row, mappingLimit, m.Limit)
	row = appendNumber(row, mappingOffset, m.Offset)
	row = appendNumber(row, mappingFile, d.string(m.File))
	if m.BuildID != "" {
		id := d.attribute("process.executable.build_id.gnu", m.BuildID)
		row = appendBytes(row, mappingAttributes, protowire.AppendVarint(nil, uint64(id)))
	}
	return d.mappings.at(row)
}

// otlp is the protocol of OTLP over HTTP.
type otlp struct{}

func (otlp) url(base *url.URL) string {
	if base.Path == "" || base.Path == "/" {
		return base.JoinPath(otlpPath).String()
	}
	return base.String()
}

func (otlp) header(h http.Header) { h.Set("Content-Type", protobufType) }

const protobufType = "application/x-protobuf"

// accepted checks the answer to a successful request, and returns how many of its profiles the receiver refused.
func (otlp) accepted(contentType string, body []byte) (rejected uint64, err error) {
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != protobufType {
		return 0, fmt.Errorf("%w (Content-Type %.60q)", errAnswer, contentType)
	}
	const partialSuccess, rejectedProfiles = 1, 1
	err = eachField(body, func(n protowire.Number, t protowire.Type, value []byte) error {
		if n != partialSuccess || t != protowire.BytesType {
			return nil
		}
		inner, size := protowire.ConsumeBytes(value)
		if size < 0 {
			return errAnswer
		}
		return eachField(inner, func(n protowire.Number, t protowire.Type, value []byte) error {
			if n == rejectedProfiles && t == protowire.VarintType {
				rejected, _ = protowire.ConsumeVarint(value)
			}
			return nil
		})
	})
	return rejected, err
}

// refusal returns the text of an answer with an error status, which is a google.rpc.Status.
func (otlp) refusal(body []byte) (text string) {
	const message = 2
	_ = eachField(body, func(n protowire.Number, t protowire.Type, value []byte) error {
		if n == message && t == protowire.BytesType {
			inner, size := protowire.ConsumeBytes(value)
			if size >= 0 {
				text = string(inner)
			}
		}
		return nil
	})
	return text
}
