// Programs that tests/company runs with client-go: one that uses pods from outside, and one that is elected in a pod.
//
// "client-go use NAMESPACE POD-SPEC" writes what it observed as JSON; "client-go lead" runs until it is ended.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
)

const (
	patience = 150 * time.Second
	serve    = "mkdir /tmp/w; echo page > /tmp/w/index.html; httpd -p 8080 -h /tmp/w; " +
		"for i in 1 2 3; do echo $i; sleep 1; done; sleep 3600"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var err error
	switch {
	case len(os.Args) == 4 && os.Args[1] == "use":
		err = use(ctx, os.Args[2], os.Args[3])
	case len(os.Args) == 2 && os.Args[1] == "lead":
		err = lead(ctx)
	default:
		err = errors.New("usage: client-go use NAMESPACE POD-SPEC | client-go lead")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// lead keeps a Lease while it is the leader, with the configuration of a pod.
func lead(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, string(namespace), "company",
		client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: name})
	if err != nil {
		return err
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 8 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { fmt.Println(name, "leads"); <-ctx.Done() },
			OnStoppedLeading: func() { fmt.Println(name, "stops") },
		},
	})
	return nil
}

type session struct {
	config    *rest.Config
	client    *kubernetes.Clientset
	namespace string
	pod       string
}

// use creates a pod, uses it as kubectl and controllers do, and evicts it.
func use(ctx context.Context, namespace, podSpec string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	s := &session{config: config, client: client, namespace: namespace, pod: "client-go"}
	seen := map[string]any{}
	pods, phases := s.informer(ctx)
	if err := s.create(ctx, podSpec); err != nil {
		return err
	}
	running := func(pod *corev1.Pod) bool { return pod != nil && ready(pod) }
	if err := s.until(ctx, pods, "the pod is ready", running); err != nil {
		return err
	}
	steps := []struct {
		name string
		run  func(context.Context) (any, error)
	}{
		{"followed log", s.followed},
		{"exec by WebSocket", func(ctx context.Context) (any, error) { return s.exec(ctx, true) }},
		{"exec by SPDY", func(ctx context.Context) (any, error) { return s.exec(ctx, false) }},
		{"forwarded port by WebSocket", func(ctx context.Context) (any, error) { return s.forward(ctx, true) }},
		{"forwarded port by SPDY", func(ctx context.Context) (any, error) { return s.forward(ctx, false) }},
	}
	for _, step := range steps {
		result, err := step.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		seen[step.name] = result
	}
	if err := s.debug(ctx); err != nil {
		return fmt.Errorf("debug container: %w", err)
	}
	debugged := func(pod *corev1.Pod) bool {
		return pod != nil && len(pod.Status.EphemeralContainerStatuses) == 1 &&
			pod.Status.EphemeralContainerStatuses[0].State.Terminated != nil
	}
	if err := s.until(ctx, pods, "the debug container ends", debugged); err != nil {
		return err
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, s.pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	seen["exit code of the debug container"] = pod.Status.EphemeralContainerStatuses[0].State.Terminated.ExitCode
	seen["QoS class"], seen["addresses"] = pod.Status.QOSClass, len(pod.Status.PodIPs)
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: s.pod, Namespace: namespace}}
	if err := client.PolicyV1().Evictions(namespace).Evict(ctx, eviction); err != nil {
		return fmt.Errorf("eviction: %w", err)
	}
	gone := func(pod *corev1.Pod) bool { return pod == nil }
	if err := s.until(ctx, pods, "the evicted pod is gone", gone); err != nil {
		return err
	}
	seen["phases"] = phases()
	return json.NewEncoder(os.Stdout).Encode(seen)
}

// informer returns the cache of the pod, and a function that returns the phases that its events had.
func (s *session) informer(ctx context.Context) (cache.Store, func() []string) {
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(s.namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = "metadata.name=" + s.pod
		}))
	informer := factory.Core().V1().Pods().Informer()
	events := make(chan string, 1000)
	note := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			events <- string(pod.Status.Phase)
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: note, UpdateFunc: func(_, object any) { note(object) },
	})
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return informer.GetStore(), func() []string {
		var phases []string
		for {
			select {
			case phase := <-events:
				if len(phases) == 0 || phases[len(phases)-1] != phase {
					phases = append(phases, phase)
				}
			default:
				return phases
			}
		}
	}
}

func (s *session) create(ctx context.Context, podSpec string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.pod}}
	if err := json.Unmarshal([]byte(podSpec), &pod.Spec); err != nil {
		return err
	}
	pod.Spec.Containers = []corev1.Container{{
		Name: "main", Image: "busybox:1.36", Command: []string{"sh", "-c", serve},
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/w/index.html"}}}},
	}}
	_, err := s.client.CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// until waits until the informer's pod, which is nil if there is none, meets the condition.
func (s *session) until(ctx context.Context, pods cache.Store, what string, so func(*corev1.Pod) bool) error {
	deadline := time.Now().Add(patience)
	for {
		object, _, err := pods.GetByKey(s.namespace + "/" + s.pod)
		if err != nil {
			return err
		}
		pod, _ := object.(*corev1.Pod)
		if so(pod) {
			return nil
		}
		if time.Now().After(deadline) {
			status, _ := json.Marshal(pod)
			return fmt.Errorf("not so within %s: %s; the pod is %s", patience, what, status)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (s *session) followed(ctx context.Context) (any, error) {
	options := &corev1.PodLogOptions{Follow: true}
	stream, err := s.client.CoreV1().Pods(s.namespace).GetLogs(s.pod, options).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	text := make([]byte, len("1\n2\n3\n"))
	if _, err := io.ReadFull(stream, text); err != nil {
		return nil, err
	}
	return strings.Fields(string(text)), nil
}

// exec runs a command with input, and returns its output and exit code.
func (s *session) exec(ctx context.Context, websocket bool) (any, error) {
	options := &corev1.PodExecOptions{
		Command: []string{"sh", "-c", "read word; echo got $word; echo error >&2; exit 7"}, Stdin: true, Stdout: true,
		Stderr: true,
	}
	address := s.subresource("exec").VersionedParams(options, scheme.ParameterCodec).URL()
	var executor remotecommand.Executor
	var err error
	if websocket {
		executor, err = remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, address.String())
	} else {
		executor, err = remotecommand.NewSPDYExecutor(s.config, http.MethodPost, address)
	}
	if err != nil {
		return nil, err
	}
	var out, failed bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin: strings.NewReader("word\n"), Stdout: &out, Stderr: &failed,
	})
	var code exec.CodeExitError
	if !errors.As(err, &code) {
		return nil, fmt.Errorf("no exit code: %w", err)
	}
	return []any{strings.TrimSpace(out.String()), strings.TrimSpace(failed.String()), code.Code}, nil
}

// forward returns the page that the container serves.
func (s *session) forward(ctx context.Context, websocket bool) (any, error) {
	address := s.subresource("portforward").URL()
	dialer, err := s.dialer(address, websocket)
	if err != nil {
		return nil, err
	}
	stop, started := make(chan struct{}), make(chan struct{})
	var closed bool
	end := func() {
		if !closed {
			closed = true
			close(stop)
		}
	}
	defer end()
	forwarder, err := portforward.NewOnAddresses(
		dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, started, io.Discard, os.Stderr)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-started:
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return nil, err
	}
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	end()
	if err == nil {
		err = <-ended
	}
	return strings.TrimSpace(string(page)), err
}

func (s *session) dialer(address *url.URL, websocket bool) (httpstream.Dialer, error) {
	if websocket {
		return portforward.NewSPDYOverWebsocketDialer(address, s.config)
	}
	transport, upgrader, err := spdy.RoundTripperFor(s.config)
	if err != nil {
		return nil, err
	}
	return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address), nil
}

// debug adds a container to the running pod.
func (s *session) debug(ctx context.Context) error {
	pods := s.client.CoreV1().Pods(s.namespace)
	pod, err := pods.Get(ctx, s.pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	container := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debugger", Image: "busybox:1.36", Command: []string{"sh", "-c", "exit 5"},
	}}
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, container)
	_, err = pods.UpdateEphemeralContainers(ctx, s.pod, pod, metav1.UpdateOptions{})
	return err
}

func (s *session) subresource(name string) *rest.Request {
	return s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(s.namespace).Name(s.pod).SubResource(name)
}
