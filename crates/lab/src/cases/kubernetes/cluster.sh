# Starts a Kubernetes of one node in a guest without a network: etcd, the control plane, containerd and a kubelet. Instead of kube-proxy, the
# address of the service `kubernetes` is one of the guest's own, where the API server listens. Where systemd is process 1, its programs are
# services, and containers are units; otherwise everything that it writes is in memory.
set -euo pipefail
dir=/var/lib/kubernetes
address=10.96.0.1
mkdir -p $dir/certs $dir/cni $dir/log $dir/programs /var/lib/containerd /var/lib/kubelet
if [ -d /run/systemd/system ]; then
    driver=systemd has_systemd_cgroups=true
else
    driver=cgroupfs has_systemd_cgroups=false
    ip link set lo up
    # As systemd does.
    mount --make-rshared /
    # The root is an overlay, on which containerd's cannot be.
    mount -t tmpfs images /var/lib/containerd
fi
echo net.ipv4.ip_forward=1 >/etc/sysctl.d/90-kubernetes.conf
sysctl --quiet --load=/etc/sysctl.d/90-kubernetes.conf

# A certification authority, which pods verify the API server with, and the key that signs their tokens.
cd $dir/certs
certificate="openssl req -batch -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -x509 -days 30"
$certificate -subj /CN=lab -keyout ca.key -out ca.crt 2>/dev/null
$certificate -subj /CN=apiserver -CA ca.crt -CAkey ca.key -addext basicConstraints=critical,CA:FALSE \
    -addext "subjectAltName=IP:$address,IP:127.0.0.1,DNS:kubernetes.default.svc" -keyout apiserver.key -out apiserver.crt 2>/dev/null
openssl ecparam -name prime256v1 -genkey -noout -out accounts.key
cd $dir
{
    echo admin-token,admin,admin,system:masters
    echo node-token,system:node:node-1,node-1,system:nodes
} >tokens.csv
for user in admin node; do
    cat >$user.conf <<END
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://$address:443", certificate-authority: $dir/certs/ca.crt}}]
users: [{name: user, user: {token: $user-token}}]
contexts: [{name: lab, context: {cluster: lab, user: user}}]
current-context: lab
END
done

# Pods reach the API server through the guest.
cat >cni/lab.conflist <<END
{"cniVersion": "1.0.0", "name": "lab", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
cat >containerd.toml <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "lab/pause:1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = $has_systemd_cgroups
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$dir/cni"
END
# Nothing is evicted or collected; what the kubelet does in intervals is rare.
cat >kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: $driver
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
failSwapOn: false
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
nodeStatusUpdateFrequency: 30s
nodeLeaseDurationSeconds: 600
syncFrequency: 10s
registerNode: true
runtimeRequestTimeout: 10m
END

# Starts a program of the cluster, `start NAME COMMAND`, with its output in log/NAME.
cat >start <<END
#!/bin/bash
set -euo pipefail
cd $dir
cat >programs/\$1 <<PROGRAM
#!/bin/sh
export PATH=\$PATH
ip address replace $address/32 dev lo
exec \$2 >>$dir/log/\$1 2>&1
PROGRAM
chmod +x programs/\$1
if [ -d /run/systemd/system ]; then
    cat >/etc/systemd/system/\$1.service <<UNIT
[Service]
ExecStart=$dir/programs/\$1
Restart=always
RestartSec=1
Delegate=yes
KillMode=process
UNIT
    systemctl daemon-reload
    systemctl start \$1
else
    setsid programs/\$1 >/dev/null 2>&1 </dev/null &
    echo \$! >\$1.pid
fi
END
chmod +x start

./start containerd "containerd --config=$dir/containerd.toml"
# The program of etcd has the name of its package.
./start etcd "server --data-dir=$dir/etcd --log-level=warn"
./start kube-apiserver "kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=443 --advertise-address=$address \
    --service-cluster-ip-range=10.96.0.0/24 --authorization-mode=Node,RBAC --allow-privileged=true \
    --tls-cert-file=$dir/certs/apiserver.crt --tls-private-key-file=$dir/certs/apiserver.key --token-auth-file=$dir/tokens.csv \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=$dir/certs/accounts.key \
    --service-account-signing-key-file=$dir/certs/accounts.key --endpoint-reconciler-type=none --enable-priority-and-fairness=false \
    --kubelet-preferred-address-types=InternalIP"
mkdir -p /root/.kube
ln -sf $dir/admin.conf /root/.kube/config
export KUBECONFIG=$dir/admin.conf
until kubectl get --raw=/readyz >log/readyz 2>&1; do sleep 5; done
./start kube-scheduler "kube-scheduler --kubeconfig=$dir/admin.conf --leader-elect=false --secure-port=0"
./start kube-controller-manager "kube-controller-manager --kubeconfig=$dir/admin.conf --leader-elect=false --secure-port=0 \
    --service-account-private-key-file=$dir/certs/accounts.key --root-ca-file=$dir/certs/ca.crt --node-monitor-grace-period=600s"
./start kubelet "kubelet --config=$dir/kubelet.yaml --kubeconfig=$dir/node.conf --hostname-override=node-1 --node-ip=$address \
    --root-dir=/var/lib/kubelet"
