// Prints kwok's own stages, which are its simulation of nodes and pods. From 0.8 on, kwok does nothing without a file of them.
package main

import (
	"fmt"

	node "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	lease "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	pod "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
)

func main() {
	for _, stage := range []string{
		node.DefaultNodeInit, lease.DefaultNodeHeartbeatWithLease,
		pod.DefaultPodReady, pod.DefaultPodComplete, pod.DefaultPodDelete,
	} {
		fmt.Printf("---\n%s\n", stage)
	}
}
