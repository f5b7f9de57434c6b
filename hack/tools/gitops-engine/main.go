// A program that syncs manifests with Argo CD's GitOps engine, and reports the health of what it synced.
//
// "gitops-engine NAMESPACE POD-SPEC" writes what it observed as JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2/klogr"

	"github.com/argoproj/gitops-engine/pkg/cache"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/tracing"
)

const (
	patience = 150 * time.Second
	owner    = "company.example/gitops"
	hook     = "argocd.argoproj.io/hook"
	serve    = "mkdir /tmp/w; echo page > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w"
)

type object = map[string]any

func main() {
	if len(os.Args) != 3 {
		fail(errors.New("usage: gitops-engine NAMESPACE POD-SPEC"))
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

type application struct {
	config    *rest.Config
	cache     cache.ClusterCache
	kubectl   kube.Kubectl
	log       logr.Logger
	namespace string
	podSpec   object
}

func run(namespace, podSpec string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	log := klogr.New()
	app := &application{
		config: config, namespace: namespace, log: log, kubectl: &kube.KubectlCmd{Log: log, Tracer: tracing.NopTracer{}},
		cache: cache.NewClusterCache(config, cache.SetNamespaces([]string{namespace}), cache.SetLogr(log),
			cache.SetPopulateResourceInfoHandler(func(*unstructured.Unstructured, bool) (any, bool) { return nil, true })),
	}
	if err := json.Unmarshal([]byte(podSpec), &app.podSpec); err != nil {
		return err
	}
	if err := app.cache.EnsureSynced(); err != nil {
		return err
	}
	defer app.cache.Invalidate()
	seen := object{}
	working := []*unstructured.Unstructured{
		app.job("before", "PreSync"), app.service(), app.deployment("true"), app.pod(), app.job("after", "PostSync"),
	}
	if seen["sync"], err = app.sync(working); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if seen["health"], err = app.until("all is healthy", func(states map[string]string) bool {
		return len(states) == 3 && states["Deployment"] == "Healthy" && states["Pod"] == "Healthy"
	}); err != nil {
		return err
	}
	broken := []*unstructured.Unstructured{app.service(), app.deployment("false"), app.pod()}
	if _, err = app.sync(broken); err != nil {
		return fmt.Errorf("sync of a failing Deployment: %w", err)
	}
	if seen["health of a failing Deployment"], err = app.until("the Deployment is degraded", func(states map[string]string) bool {
		return states["Deployment"] == "Degraded"
	}); err != nil {
		return err
	}
	if seen["health of its pods"], err = app.podHealth(); err != nil {
		return err
	}
	if seen["pruned"], err = app.sync(nil); err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	if _, err = app.until("nothing is left", func(states map[string]string) bool { return len(states) == 0 }); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(seen)
}

// sync applies the objects with their hooks, prunes others of the application, and returns a result for each.
//
// Each round has a new context with the state of the previous one, as in Argo CD, because a context does not refresh the
// live objects, such as the Job of a hook.
func (a *application) sync(objects []*unstructured.Unstructured) ([]string, error) {
	deadline, started := time.Now().Add(patience), metav1.Now()
	phase, message, results := common.OperationRunning, "", []common.ResourceSyncResult(nil)
	for !phase.Completed() {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("not completed within %s: %s", patience, message)
		}
		live, err := a.cache.GetManagedLiveObjs(objects, a.manages)
		if err != nil {
			return nil, err
		}
		reconciled := sync.Reconcile(objects, live, a.namespace, a.cache)
		round, end, err := sync.NewSyncContext("1", reconciled, a.config, a.config, a.kubectl, a.namespace,
			a.cache.GetOpenAPISchema(), sync.WithPrune(true), sync.WithLogr(a.log),
			sync.WithInitialState(phase, message, results, started))
		if err != nil {
			return nil, err
		}
		round.Sync()
		phase, message, results = round.GetState()
		end()
		time.Sleep(time.Second)
	}
	if !phase.Successful() {
		return nil, fmt.Errorf("%s: %s: %v", phase, message, results)
	}
	var lines []string
	for _, result := range results {
		state := string(result.Status)
		if result.HookType != "" {
			state = fmt.Sprintf("%s %s", result.HookType, result.HookPhase)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", result.ResourceKey.Kind, result.ResourceKey.Name, state))
	}
	sort.Strings(lines)
	return lines, nil
}

func (a *application) manages(resource *cache.Resource) bool {
	return resource.Resource != nil && resource.Resource.GetAnnotations()[owner] == a.namespace
}

// until waits until the health of the application's objects, by kind, meets the condition; hooks do not count.
func (a *application) until(what string, so func(map[string]string) bool) (map[string]string, error) {
	deadline := time.Now().Add(patience)
	for {
		states, err := a.health()
		if err != nil {
			return nil, err
		}
		if so(states) {
			return states, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("not so within %s: %s; the health is %v", patience, what, states)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (a *application) health() (map[string]string, error) {
	states := map[string]string{}
	for key, resource := range a.cache.FindResources(a.namespace) {
		live := resource.Resource
		if !a.manages(resource) || len(live.GetOwnerReferences()) > 0 || live.GetAnnotations()[hook] != "" {
			continue
		}
		status, err := health.GetResourceHealth(live, nil)
		if err != nil {
			return nil, err
		}
		states[key.Kind] = "no health"
		if status != nil {
			states[key.Kind] = string(status.Status)
		}
	}
	return states, nil
}

// podHealth returns the health of the pods of Deployments, sorted.
func (a *application) podHealth() ([]string, error) {
	var states []string
	for key, resource := range a.cache.FindResources(a.namespace) {
		if key.Kind != "Pod" || resource.Resource.GetLabels()["app"] != "web" {
			continue
		}
		status, err := health.GetResourceHealth(resource.Resource, nil)
		if err != nil {
			return nil, err
		}
		states = append(states, string(status.Status))
	}
	sort.Strings(states)
	return states, nil
}

func (a *application) object(version, kind, name string, fields object) *unstructured.Unstructured {
	result := &unstructured.Unstructured{Object: object{"apiVersion": version, "kind": kind}}
	for field, value := range fields {
		result.Object[field] = value
	}
	result.SetName(name)
	result.SetNamespace(a.namespace)
	annotations := result.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[owner] = a.namespace
	result.SetAnnotations(annotations)
	return result
}

// deployment returns a web server, which becomes ready if its readiness probe, a command, succeeds.
func (a *application) deployment(probe string) *unstructured.Unstructured {
	labels := object{"app": "web"}
	spec := a.pods("Always", serve)
	spec["containers"].([]any)[0].(object)["readinessProbe"] = object{
		"periodSeconds": int64(1), "exec": object{"command": []any{probe}},
	}
	return a.object("apps/v1", "Deployment", "web", object{"spec": object{
		"replicas": int64(2), "progressDeadlineSeconds": int64(20), "selector": object{"matchLabels": labels},
		"template": object{"metadata": object{"labels": labels}, "spec": spec},
	}})
}

func (a *application) service() *unstructured.Unstructured {
	return a.object("v1", "Service", "web", object{"spec": object{
		"selector": object{"app": "web"}, "ports": []any{object{"port": int64(8080), "protocol": "TCP"}},
	}})
}

func (a *application) pod() *unstructured.Unstructured {
	return a.object("v1", "Pod", "single", object{"spec": a.pods("Always", "exec sleep 36000")})
}

func (a *application) job(name, phase string) *unstructured.Unstructured {
	return a.object("batch/v1", "Job", name, object{
		"metadata": object{"annotations": object{hook: phase}},
		"spec":     object{"backoffLimit": int64(0), "template": object{"spec": a.pods("Never", "echo done")}},
	})
}

func (a *application) pods(restart, script string) object {
	spec := object{
		"terminationGracePeriodSeconds": int64(1), "restartPolicy": restart,
		"containers": []any{object{
			"name": "main", "image": "busybox:1.36", "command": []any{"sh", "-c", script},
		}},
	}
	for field, value := range a.podSpec {
		spec[field] = value
	}
	return spec
}
