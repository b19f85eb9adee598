// Package tools builds and checks packages and manifests. It is a separate module, so that the product depends on none
// of its tools.
package tools

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const bases = "../kubernetes"

// postgresCluster has the fields of Crunchy PGO's resource that are used; the containers are Kubernetes' own type.
type postgresCluster struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       struct {
		PostgresVersion int `json:"postgresVersion"`
		Instances       []struct {
			Name                string                           `json:"name"`
			DataVolumeClaimSpec corev1.PersistentVolumeClaimSpec `json:"dataVolumeClaimSpec"`
			Containers          []corev1.Container               `json:"containers"`
		} `json:"instances"`
		Backups struct {
			PGBackRest struct {
				Repos []struct {
					Name   string `json:"name"`
					Volume struct {
						VolumeClaimSpec corev1.PersistentVolumeClaimSpec `json:"volumeClaimSpec"`
					} `json:"volume"`
				} `json:"repos"`
			} `json:"pgbackrest"`
		} `json:"backups"`
	} `json:"spec"`
}

// cluster has the fields of CloudNativePG's resource that are used.
type cluster struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       struct {
		Instances int    `json:"instances"`
		ImageName string `json:"imageName"`
		Storage   struct {
			Size string `json:"size"`
		} `json:"storage"`
		PostgreSQL struct {
			Extensions []struct {
				Name                 string                   `json:"name"`
				Image                corev1.ImageVolumeSource `json:"image"`
				ExtensionControlPath []string                 `json:"extension_control_path"`
			} `json:"extensions"`
		} `json:"postgresql"`
	} `json:"spec"`
}

// types are the resources that the bases may have.
var types = map[string]func() any{
	"apps/v1 StatefulSet":           func() any { return new(appsv1.StatefulSet) },
	"apps/v1 DaemonSet":             func() any { return new(appsv1.DaemonSet) },
	"v1 Namespace":                  func() any { return new(corev1.Namespace) },
	"postgresql.cnpg.io/v1 Cluster": func() any { return new(cluster) },
	"postgres-operator.crunchydata.com/v1beta1 PostgresCluster": func() any { return new(postgresCluster) },
}

// build makes the resources of a base, decoded strictly: a field that the type does not have is an error.
func build(t *testing.T, base string) (resources []any) {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(bases, base))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range made.Resources() {
		name := r.GetApiVersion() + " " + r.GetKind()
		make, known := types[name]
		if !known {
			t.Fatalf("%s: resource of type %s is not checked", base, name)
		}
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		value := make()
		if err := yaml.UnmarshalStrict(text, value); err != nil {
			t.Fatalf("%s: %s: %v", base, name, err)
		}
		resources = append(resources, value)
	}
	return resources
}

func TestBases(t *testing.T) {
	folders, err := filepath.Glob(bases + "/*/kustomization.yaml")
	if err != nil || len(folders) < 4 {
		t.Fatal("bases are missing", folders, err)
	}
	for _, folder := range folders {
		base := filepath.Base(filepath.Dir(folder))
		t.Run(base, func(t *testing.T) {
			for _, resource := range build(t, base) {
				switch r := resource.(type) {
				case *appsv1.StatefulSet:
					checkSidecar(t, r.Spec.Template.Spec)
				case *appsv1.DaemonSet:
					checkNode(t, r.Spec.Template.Spec)
				case *postgresCluster:
					for _, instance := range r.Spec.Instances {
						checkWorker(t, instance.Containers[0], false)
					}
				}
			}
		})
	}
}

// checkSidecar: one PID namespace, one user id, volumes that exist, the same path of the data for both.
func checkSidecar(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	if pod.ShareProcessNamespace == nil || !*pod.ShareProcessNamespace {
		t.Error("the pod does not share its PID namespace")
	}
	if pod.SecurityContext.RunAsUser == nil || *pod.SecurityContext.RunAsUser == 0 {
		t.Error("the pod does not run as the server's user")
	}
	volumes := []string{"data"} // of the claim template
	for _, v := range pod.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, c := range pod.Containers {
		if c.SecurityContext.RunAsUser != nil {
			t.Errorf("container %s runs as another user", c.Name)
		}
		for _, m := range c.VolumeMounts {
			if !slices.Contains(volumes, m.Name) {
				t.Errorf("container %s mounts volume %s, which does not exist", c.Name, m.Name)
			}
		}
	}
	checkWorker(t, pod.Containers[1], false)
}

func checkNode(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	if !pod.HostPID {
		t.Error("the pod sees no process of the node")
	}
	checkWorker(t, pod.Containers[0], true)
	if !slices.Contains(pod.Containers[0].Args, "--all") {
		t.Error("the worker does not serve all servers")
	}
}

func checkWorker(t *testing.T, c corev1.Container, root bool) {
	t.Helper()
	s := c.SecurityContext
	switch {
	case len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL":
		t.Error("capabilities are not dropped")
	case !slices.Contains(s.Capabilities.Add, "SYS_PTRACE"):
		t.Error("SYS_PTRACE is missing")
	case s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
		t.Error("the root directory can be written")
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation:
		t.Error("privileges can be gained")
	case root != (s.RunAsUser != nil && *s.RunAsUser == 0):
		t.Errorf("root: %v", !root)
	}
	if len(c.Args) == 0 || c.Args[0] != "worker" {
		t.Errorf("arguments %q do not start the worker", c.Args)
	}
}

// TestCosts: each manifest says what every capability that it gives, or does not give, is for.
func TestCosts(t *testing.T) {
	files, err := filepath.Glob(bases + "/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		comments, manifest := "", ""
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "#") {
				comments += line
			} else {
				manifest += line
			}
		}
		for _, capability := range []string{"SYS_PTRACE", "DAC_READ_SEARCH", "SETUID", "SETGID", "SETPCAP"} {
			if strings.Contains(manifest, capability) && !strings.Contains(comments, capability) {
				t.Errorf("%s does not explain %s", file, capability)
			}
		}
	}
}

// TestWrongField: the check is strict.
func TestWrongField(t *testing.T) {
	text := "apiVersion: apps/v1\nkind: DaemonSet\nspec: {template: {spec: {hostPIDs: true}}}\n"
	if err := yaml.UnmarshalStrict([]byte(text), new(appsv1.DaemonSet)); err == nil {
		t.Error("hostPIDs, which is no field, passes")
	}
}
