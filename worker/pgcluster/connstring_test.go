package pgcluster

import (
	"testing"
)

// clearEnvironment hides the tester's own settings from pgx.
func clearEnvironment(t *testing.T) {
	for _, name := range []string{
		"PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE", "PGSERVICEFILE", "PGPASSFILE", "PGPASSWORD", "PGAPPNAME",
		"PGSSLMODE", "PGOPTIONS", "PGTARGETSESSIONATTRS",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
}

func TestParseConnString(t *testing.T) {
	clearEnvironment(t)
	known := &Cluster{SocketDir: "/run/it's", Port: 6000}
	for name, test := range map[string]struct {
		text     string
		cluster  *Cluster
		env      map[string]string
		host     string
		port     uint16
		database string
	}{
		"the cluster's socket":         {"", known, nil, "/run/it's", 6000, "postgres"},
		"keywords without a host":      {"user=x", known, nil, "/run/it's", 6000, "postgres"},
		"keywords with a port":         {"port=7", known, nil, "/run/it's", 7, "postgres"},
		"keywords with a host":         {"host=h user=x", known, nil, "h", 5432, "postgres"},
		"a word that ends in host":     {"password=host", known, nil, "/run/it's", 6000, "postgres"},
		"a database":                   {"dbname=d", known, nil, "/run/it's", 6000, "d"},
		"a URI without a host":         {"postgres:///d?user=x", known, nil, "/run/it's", 6000, "d"},
		"a URI with a port":            {"postgresql:///?port=7", known, nil, "/run/it's", 7, "postgres"},
		"a URI with a host":            {"postgres://h/d", known, nil, "h", 5432, "d"},
		"a URI with a host elsewhere":  {"postgres:///d?host=/s", known, nil, "/s", 5432, "d"},
		"host from the environment":    {"", known, map[string]string{"PGHOST": "/env"}, "/env", 5432, "postgres"},
		"port from the environment":    {"", known, map[string]string{"PGPORT": "7"}, "/run/it's", 7, "postgres"},
		"database in the environment":  {"", known, map[string]string{"PGDATABASE": "e"}, "/run/it's", 6000, "e"},
		"no cluster":                   {"host=/s port=9", nil, nil, "/s", 9, "postgres"},
		"a cluster that has no socket": {"host=/s", &Cluster{Port: 6000}, nil, "/s", 5432, "postgres"},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range test.env {
				t.Setenv(key, value)
			}
			config, err := parseConnString(test.text, test.cluster)
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != test.host || config.Port != test.port || config.Database != test.database {
				t.Errorf("host %q, port %d, database %q", config.Host, config.Port, config.Database)
			}
			if config.RuntimeParams["application_name"] != applicationName {
				t.Errorf("application_name %q", config.RuntimeParams["application_name"])
			}
		})
	}
}

func TestParseConnStringBad(t *testing.T) {
	clearEnvironment(t)
	for _, text := range []string{"host", "postgres://%zz", "port=x", "host=h sslmode=perhaps", "service=nowhere"} {
		if _, err := parseConnString(text, &Cluster{SocketDir: "/s", Port: 1}); err == nil {
			t.Errorf("%q is accepted", text)
		}
		if _, err := NewConn(ConnOptions{ConnString: text}); err == nil {
			t.Errorf("NewConn accepts %q", text)
		}
	}
}
