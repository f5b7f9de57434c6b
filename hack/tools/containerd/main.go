// A containerd with the plugins that a node needs, and one more command, which imports an archive of images: the whole
// one and its ctr bring clients of tracing, other file systems and registries, and build for minutes longer.
package main

import (
	"context"
	"fmt"
	"os"

	_ "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
	_ "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	_ "github.com/containerd/containerd/v2/plugins/cri"
	_ "github.com/containerd/containerd/v2/plugins/cri/images"
	_ "github.com/containerd/containerd/v2/plugins/cri/runtime"
	_ "github.com/containerd/containerd/v2/plugins/diff/walking/plugin"
	_ "github.com/containerd/containerd/v2/plugins/events"
	_ "github.com/containerd/containerd/v2/plugins/gc"
	_ "github.com/containerd/containerd/v2/plugins/leases"
	_ "github.com/containerd/containerd/v2/plugins/metadata"
	_ "github.com/containerd/containerd/v2/plugins/mount"
	_ "github.com/containerd/containerd/v2/plugins/nri"
	_ "github.com/containerd/containerd/v2/plugins/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/server/grpc"
	_ "github.com/containerd/containerd/v2/plugins/server/ttrpc"
	_ "github.com/containerd/containerd/v2/plugins/services/containers"
	_ "github.com/containerd/containerd/v2/plugins/services/content"
	_ "github.com/containerd/containerd/v2/plugins/services/diff"
	_ "github.com/containerd/containerd/v2/plugins/services/events"
	_ "github.com/containerd/containerd/v2/plugins/services/images"
	_ "github.com/containerd/containerd/v2/plugins/services/introspection"
	_ "github.com/containerd/containerd/v2/plugins/services/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/namespaces"
	_ "github.com/containerd/containerd/v2/plugins/services/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/services/snapshots"
	_ "github.com/containerd/containerd/v2/plugins/services/tasks"
	_ "github.com/containerd/containerd/v2/plugins/services/version"
	_ "github.com/containerd/containerd/v2/plugins/services/warning"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/native/plugin"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/overlay/plugin"
	_ "github.com/containerd/containerd/v2/plugins/transfer"
)

func main() {
	var err error
	if len(os.Args) == 5 && os.Args[1] == "import" {
		err = importArchive(os.Args[2], os.Args[3], os.Args[4])
	} else {
		err = command.App().Run(os.Args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		os.Exit(1)
	}
}

// importArchive loads the images of an archive for the kubelet, and unpacks them, so that no container waits for it.
func importArchive(address, snapshotter, path string) error {
	archive, err := os.Open(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	containerd, err := client.New(address)
	if err != nil {
		return err
	}
	defer containerd.Close()
	ctx := namespaces.WithNamespace(context.Background(), "k8s.io")
	images, err := containerd.Import(ctx, archive)
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := client.NewImage(containerd, image).Unpack(ctx, snapshotter); err != nil {
			return err
		}
	}
	return nil
}
