// Uses fabric8's Kubernetes client as programs do; prints what it observed as JSON.
//
// "java -cp LIBRARIES Client.java NAMESPACE SCHEDULING", with KUBECONFIG in the environment.

import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.api.model.PodBuilder;
import io.fabric8.kubernetes.api.model.PodSpec;
import io.fabric8.kubernetes.api.model.PodSpecBuilder;
import io.fabric8.kubernetes.api.model.batch.v1.JobBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.LocalPortForward;
import io.fabric8.kubernetes.client.dsl.ExecWatch;
import io.fabric8.kubernetes.client.dsl.LogWatch;
import io.fabric8.kubernetes.client.dsl.PodResource;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.informers.SharedIndexInformer;
import io.fabric8.kubernetes.client.utils.Serialization;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;

public class Client {
  private static final String SERVE =
      "mkdir /tmp/www; echo page > /tmp/www/index.html; httpd -p 8080 -h /tmp/www; echo started; sleep 3600";
  private static final int PATIENCE = 150;

  private final KubernetesClient client;
  private final String namespace;
  private final PodSpec scheduling;

  Client(KubernetesClient client, String namespace, PodSpec scheduling) {
    this.client = client;
    this.namespace = namespace;
    this.scheduling = scheduling;
  }

  public static void main(String[] arguments) throws Exception {
    try (KubernetesClient client = new KubernetesClientBuilder().build()) {
      PodSpec scheduling = Serialization.unmarshal(arguments[1], PodSpec.class);
      Map<String, Object> seen = new Client(client, arguments[0], scheduling).use();
      System.out.println(Serialization.asJson(seen));
    }
  }

  private Map<String, Object> use() throws Exception {
    Set<String> events = new ConcurrentSkipListSet<>();
    Map<String, Object> seen = new LinkedHashMap<>();
    try (SharedIndexInformer<Pod> informer = client.pods().inNamespace(namespace).inform(handler(events))) {
      create("server", SERVE, "Always");
      PodResource server = pod("server");
      server.waitUntilReady(PATIENCE, TimeUnit.SECONDS);
      seen.put("log", server.getLog().strip());
      seen.put("exec", execute(server));
      seen.put("exec with input", interactive(server));
      seen.put("forwarded port", forwarded(server));
      server.file("/tmp/sent").upload(new ByteArrayInputStream("content".getBytes(StandardCharsets.UTF_8)));
      seen.put("uploaded file", text(server.file("/tmp/sent").read()));
      seen.put("followed log", followed());
      seen.put("pods of a Job", job());
      server.delete();
      server.waitUntilCondition(pod -> pod == null, PATIENCE, TimeUnit.SECONDS);
      for (int tries = 0; !events.contains("deleted") && tries < PATIENCE; tries++) {
        TimeUnit.SECONDS.sleep(1);
      }
      seen.put("events of the informer", List.copyOf(events));
    }
    return seen;
  }

  private ResourceEventHandler<Pod> handler(Set<String> events) {
    return new ResourceEventHandler<>() {
      @Override
      public void onAdd(Pod pod) {
        add("added", pod);
      }

      @Override
      public void onUpdate(Pod before, Pod pod) {
        add(pod.getStatus().getPhase(), pod);
      }

      @Override
      public void onDelete(Pod pod, boolean unknown) {
        add("deleted", pod);
      }

      private void add(String what, Pod pod) {
        if (pod.getMetadata().getName().equals("server")) {
          events.add(what);
        }
      }
    };
  }

  private void create(String name, String script, String policy) {
    client.resource(new PodBuilder().withNewMetadata().withName(name).withNamespace(namespace).endMetadata()
        .withSpec(spec(script, policy)).build()).create();
  }

  private PodSpec spec(String script, String policy) {
    return new PodSpecBuilder(scheduling).withRestartPolicy(policy).withTerminationGracePeriodSeconds(1L)
        .addNewContainer().withName("main").withImage("busybox:1.36").withCommand("sh", "-c", script).endContainer()
        .build();
  }

  private PodResource pod(String name) {
    return client.pods().inNamespace(namespace).withName(name);
  }

  private List<Object> execute(PodResource pod) throws Exception {
    ByteArrayOutputStream output = new ByteArrayOutputStream();
    ByteArrayOutputStream error = new ByteArrayOutputStream();
    try (ExecWatch running = pod.writingOutput(output).writingError(error)
        .exec("sh", "-c", "echo out; echo err >&2; exit 7")) {
      int code = running.exitCode().get(PATIENCE, TimeUnit.SECONDS);
      return List.of(output.toString().strip(), error.toString().strip(), code);
    }
  }

  private String interactive(PodResource pod) throws Exception {
    try (ExecWatch shell = pod.redirectingInput().redirectingOutput().exec("sh")) {
      shell.getInput().write("echo $((20 + 22))\n".getBytes(StandardCharsets.UTF_8));
      shell.getInput().flush();
      return new BufferedReader(new InputStreamReader(shell.getOutput())).readLine();
    }
  }

  private String forwarded(PodResource pod) throws Exception {
    try (LocalPortForward forward = pod.portForward(8080)) {
      URI page = URI.create("http://127.0.0.1:" + forward.getLocalPort() + "/");
      HttpRequest request = HttpRequest.newBuilder(page).build();
      HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
      return http.send(request, HttpResponse.BodyHandlers.ofString()).body().strip();
    }
  }

  private List<String> followed() {
    create("log", "for i in 1 2 3; do echo $i; sleep 1; done", "Never");
    pod("log").waitUntilCondition(
        pod -> pod != null && !"Pending".equals(pod.getStatus().getPhase()), PATIENCE, TimeUnit.SECONDS);
    try (LogWatch log = pod("log").watchLog()) {
      return new BufferedReader(new InputStreamReader(log.getOutput())).lines().toList();
    }
  }

  private List<Integer> job() {
    var job = client.resource(new JobBuilder().withNewMetadata().withName("job").withNamespace(namespace).endMetadata()
        .withNewSpec().withCompletions(2).withParallelism(2).withBackoffLimit(0)
        .withNewTemplate().withSpec(spec("sleep 1", "Never")).endTemplate().endSpec().build());
    job.create();
    var done = job.waitUntilCondition(
        one -> one != null && one.getStatus() != null && Integer.valueOf(2).equals(one.getStatus().getSucceeded()),
        PATIENCE, TimeUnit.SECONDS);
    return List.of(done.getStatus().getSucceeded(), client.pods().inNamespace(namespace)
        .withLabel("job-name", "job").list().getItems().size());
  }

  private static String text(InputStream stream) throws Exception {
    return new String(stream.readAllBytes(), StandardCharsets.UTF_8).strip();
  }
}
